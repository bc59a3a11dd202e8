"""nano's configuration: config.json with the layer map, the token ids, and where things lie."""
import json
import pathlib
from types import SimpleNamespace

FOLDER = pathlib.Path(__file__).resolve().parent
CHECKPOINT = FOLDER / "checkpoint"
GOLDEN = FOLDER / "golden"
RESULTS = FOLDER / "results"

# Bytes are ids 0 to 255; markers follow.
(BOS, EOS, PAD, SYSTEM, USER, ASSISTANT, CALL, CALL_END, RESULT, RESULT_END, THINK, THINK_END,
 NOISE) = range(256, 269)


def load_config(path=FOLDER / "config.json") -> SimpleNamespace:
    """The text part of config.json, plus the layer map derived from it."""
    c = SimpleNamespace(**json.loads(pathlib.Path(path).read_text())["text_config"])
    c.layers = c.num_hidden_layers
    c.encoder_layers = c.candidate_source_layer_id  # The decoder starts at the ratio-1 source.
    c.stages = c.num_nextn_predict_layers
    c.kv_source = {}  # Layer -> the layer whose global KV it reads.
    source = None
    for layer in range(c.layers):
        source = layer if layer in c.kv_source_layer_ids else source
        c.kv_source[layer] = source
    c.scale = c.head_dim ** -0.5
    return c
