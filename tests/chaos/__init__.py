"""Real processes over a real nats-server: killed, restarted, raced."""
