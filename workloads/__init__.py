"""Sample applications and the load generator that drives them. Nothing here is part of Weir: it is what Weir is tried
on."""
