"""How the policies learn: imitation of a teacher, then reinforcement on the simulator."""
