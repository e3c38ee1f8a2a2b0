"""A read model of a group, made from its znodes alone, and its renderings."""
