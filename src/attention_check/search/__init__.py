"""How to make the module, and how to call it."""
