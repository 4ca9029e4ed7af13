"""What can be thrown away and made again: the fold, the projections, and what runs them."""
