"""The kinds of derived state, one module each; all are written in one batch per commit."""
