"""What Headway exports to Prometheus. A leaf: it reads plain numbers and knows nothing of who produced them."""
