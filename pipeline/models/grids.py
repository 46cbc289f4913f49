"""The names of parts of a block, and of the places that are compared; needs no torch."""

ATTENTION, MLP, BOTH, HEAD, NEURONS = "attention", "mlp", "both", "head", "neurons"
BLOCKS, HEADS, GROUPS = GRIDS = "blocks", "heads", "neurons"
"""What the places of one comparison are: whole blocks, heads, or groups of neurons."""

GRID_OF = {HEAD: HEADS, NEURONS: GROUPS}
"""Part that learns -> the places that are compared; `BLOCKS` for all others."""

NEURON_GROUPS = 4
"""Groups of neighbouring neurons, of equal size, in each MLP."""
