"""What work runs on: device, cores, cache folder, random streams, several processes, progress."""
