"""Step in, outcome out: the real model (openvino) and a cost model that pretends (simulated)."""
