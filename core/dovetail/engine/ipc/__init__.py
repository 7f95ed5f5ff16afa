"""Engine processes, and the sockets that messages travel over."""
