"""SGLang with its host cache: the trees, pools and transfer controllers of a release, without a model."""
