"""
Change what is stored: topics, weights of partitions, and the claims of a member; one module for each subject.

Commands and embedded clusters call it. An action loads what there is, plans the change, and applies the plan.
It prints nothing and asks for no confirmation: its caller does both.
"""
