import torch

# Tests run in as many processes as there are cores; threads on top of that would fight over them.
torch.set_num_threads(1)
