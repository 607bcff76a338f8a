"""`install()` on import, for verl's `VERL_USE_EXTERNAL_MODULES`; see `groupwise.integrations.verl`."""

from groupwise.integrations.verl import install

install()
