"""Recipes: functions that return a whole run configuration, by the name that `excise train` takes."""

from collections.abc import Callable, Mapping

from excise.recipes.demo import demo_run
from excise.recipes.paper import PAPER_RECIPES
from excise.train.run import RunConfig

RECIPES: Mapping[str, Callable[[], RunConfig]] = {"demo": demo_run, **PAPER_RECIPES}
