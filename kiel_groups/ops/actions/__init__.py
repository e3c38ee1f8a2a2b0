"""
Change topics, groups, offsets, settings, weights of partitions and claims; one module for each subject.

Commands and embedded clusters call these modules. An action reads the present state, plans the change, and applies the
plan. Actions print nothing and ask for no confirmation: the caller does both.
"""
