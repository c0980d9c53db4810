"""The cluster on a virtual clock: the same scheduler, plans, batching and agents, with links and steps in closed form
(paper sections 6 and 7)."""
