"""Pictures: state in, `Picture` out. Pure functions, no pyplot, no global setting touched.

Every picture is white, names its axes, writes its numbers into the cells where they fit,
hatches what a mask hides, and carries a description in words.
"""

from .basic import Picture, bars, draw_heat_map, heat_map, heat_maps, lines, spread
from .calculation import one_query
from .flow import Arrow, Grid, flow
from .heads import head_grid
from .many_heads import heads_at_once, heads_beside_cut
from .roles import role_task
from .times import ratio_maps, time_bars

__all__ = [
    "Arrow",
    "Grid",
    "Picture",
    "bars",
    "draw_heat_map",
    "flow",
    "head_grid",
    "heads_at_once",
    "heads_beside_cut",
    "heat_map",
    "heat_maps",
    "lines",
    "one_query",
    "ratio_maps",
    "role_task",
    "spread",
    "time_bars",
]
