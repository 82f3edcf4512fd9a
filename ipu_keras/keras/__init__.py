"""The Keras side: the strategy, its scope, and the training functions of models made in it."""
