"""What Flux asks of the operating system: sockets, files, threads, processes; a simulation replaces the calls."""
