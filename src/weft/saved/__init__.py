"""Programs saved ahead of time: files that hold what a model was compiled to, for one or several kinds of machines."""
