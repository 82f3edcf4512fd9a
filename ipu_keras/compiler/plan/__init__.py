"""Plans: how a dot or a convolution is split over the tiles, chosen by the cycle model that the report uses."""
