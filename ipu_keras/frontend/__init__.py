"""A Python step function becomes a serialized HLO module and the list of what its parameters and outputs mean."""
