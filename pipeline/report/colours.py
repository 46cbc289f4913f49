"""The colours of the figures.

Ink, muted, rule and paper are used only for what their names say, so that the page can replace
them by its own light or dark ones. Each category has a contrast of 3:1 or more to both the
light and the dark surface of the page, and they can be told apart with the common colour
blindnesses together with their markers.
"""

INK = "#1c2127"
MUTED = "#545d68"
RULE = "#d9dde3"
PAPER = "#ffffff"

BLUE, VERMILION, GREEN = "#1f83c9", "#d55e00", "#029e73"
PURPLE, OLIVE, GREY = "#a65fb5", "#8a7400", "#7a7f87"
CATEGORIES = (BLUE, VERMILION, GREEN, PURPLE, OLIVE, GREY)
