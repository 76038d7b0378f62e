"""Language models: prompts with typed inputs and outputs, and the models that answer them."""
