"""The peers that the benchmarks measure against, installed by the scripts themselves from the package registries."""
