"""What is wrong with somebody's attention, and why."""

from .check import check_attention
from .report import Finding, Report

__all__ = ["Finding", "Report", "check_attention"]
