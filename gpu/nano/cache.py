"""State of one session of the reference: what a server has to keep to continue it."""
import torch


class Cache:
    """Token ids, global KV entries by source layer, the windows of all layers and DSpark stages.

    Windows are rings: the row of position p lies in slot p mod window. ring_pos tells which
    position a slot holds, -1 for none."""

    def __init__(self, c, device="cpu"):
        layers, sources = c.layers + c.stages, c.kv_source_layer_ids
        self.ids = []
        self.ring = torch.zeros(layers, c.sliding_window, c.head_dim, device=device)
        self.ring_pos = torch.full((layers, c.sliding_window), -1, dtype=torch.int64, device=device)
        self.main = {s: torch.zeros(0, c.head_dim, device=device) for s in sources}
        self.index = {s: torch.zeros(0, c.index_head_dim, device=device) for s in sources}
        self.tail = {s: None for s in sources}  # (a, g) of an even token whose pair is incomplete.

    def clone(self):
        other = object.__new__(Cache)
        other.ids = list(self.ids)
        other.ring, other.ring_pos = self.ring.clone(), self.ring_pos.clone()
        # Entries are appended by making a new tensor, so these may be shared.
        other.main, other.index, other.tail = dict(self.main), dict(self.index), dict(self.tail)
        return other

    def write_window(self, layer, rows, pos):
        """Stores the rows of positions pos; only the last window of them stays."""
        window = self.ring.shape[1]
        slot = pos[-window:].remainder(window)
        self.ring[layer, slot] = rows[-window:]
        self.ring_pos[layer, slot] = pos[-window:]

    def append_global(self, layer, main, index):
        self.main[layer] = torch.cat([self.main[layer], main])
        self.index[layer] = torch.cat([self.index[layer], index])

    def drop_windows(self, layers):
        for layer in layers:
            self.ring[layer].zero_()
            self.ring_pos[layer].fill_(-1)
