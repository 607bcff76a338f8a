"""Groups and advantages to a better policy: packing, the loss over micro-batches, the optimiser's step."""

from groupwise.update.advantages import Advantages
from groupwise.update.pack import MicroBatch, pack
from groupwise.update.schedule import learning_rate
from groupwise.update.step import Fields, LossOfStep, Updater

__all__ = ["Advantages", "Fields", "LossOfStep", "MicroBatch", "Updater", "learning_rate", "pack"]
