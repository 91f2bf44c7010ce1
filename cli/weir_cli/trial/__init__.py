"""`weir trial`: every real part on one machine, a real job under a replayed load, held at its objective by the loop."""
