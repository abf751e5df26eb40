// Loaded and unloaded by host.c.
int plug(int value) { return value * 3 + PLUGIN; }
int late(int value) { return value * 5 + PLUGIN; }
