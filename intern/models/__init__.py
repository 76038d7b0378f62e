"""Language models: prompts with typed inputs and outputs, and the endpoints that answer them."""
