"""Prefill and decode engines: a control loop, a compute thread, and the traffic between them."""
