"""What arguments are usually called: of a constructor, and of forward."""

import re

WIDTHS = (
    "d_model embed_dim embed_size embedding_dim emb_dim n_embd hidden_size d_in dim_in "
    "input_dim in_dim in_features d_embed model_dim dmodel dim emb emb_size width "
    "num_hiddens hid_dim"
).split()
HEADS = "num_heads n_heads n_head num_attention_heads nhead heads num_head nheads h n_h".split()
CONTEXTS = (
    "context_length block_size max_seq_len max_length max_len seq_len n_ctx max_tokens ctx_len "
    "context_size max_position_embeddings n_positions sequence_length num_tokens T"
).split()
WINDOWS = "window window_size win chunk chunk_size local_window block_len stride".split()
OUT_WIDTHS = "d_out dim_out output_dim out_dim out_features".split()
HEAD_WIDTHS = "head_dim head_size d_head dim_head d_k d_v key_dim d_q dk dv".split()
DROPOUTS = "dropout attn_dropout dropout_rate drop p dropout_p attention_dropout attn_drop".split()

LENGTHS = re.compile(r"(?:^|_)len(?:s|gths)$")
MASK = re.compile(rf"mask|^padding$|^hidden$|^keep$|^valid$|^allowed$|^visible$|{LENGTHS.pattern}")
CONTEXT_MASK = re.compile(r"encoder|memory|cross")
OTHER_MASK = re.compile(rf"(?<![a-z])head_mask|{CONTEXT_MASK.pattern}|use_|is_|return|_type")
QUERY_MASK = re.compile(r"^(?:x_)?q(?:uery|ueries)?_")  # of rows that nobody looks at
# what a docstring says a mask's True, or 1, means
_SAID = r"\b(?:true|ones?|1)\b(?:(?!\band\b|\b0\b|false)[^.;,]){0,40}\b"
HIDDEN_SAID = re.compile(_SAID + r"(?:hid|masked out|pad|ignor)", re.IGNORECASE)
KEPT_SAID = re.compile(_SAID + r"(?:keep|kept|real|valid|visible|attend)", re.IGNORECASE)
KEYS = re.compile(r"^(k|v|key|keys|value|values|kv|key_value|x_k|x_v|k_in|v_in)$")
QUERIES = re.compile(r"^(q|query|queries|x_q|q_in)$")
ROLE = re.compile(r"(?:x_)?(q|k|v)(?:uery|ueries|eys?|alues?)?(?:_in)?")
ENCODER = r"context|ctx|enc(?:oder|oded)?(?:_\w+)?"
CONTEXT = re.compile(
    ENCODER + r"|memory|mem|src|source|(?:x_)?(?:kv|key_value)(?:_states)?|x_?2|xa"
)
OPTIONAL = re.compile(CONTEXT.pattern + r"|cond(?:itioning)?")
SWITCH = re.compile(r"mask|caus|autoregress|decod|unidirect", re.IGNORECASE)
ZEROS = re.compile(r"^(start_pos|offset|start|pos|position|step|layer_idx|past_length)$")
CACHE = re.compile(
    r"cache|past|^state$|^kv_state|^prev_kv|^mem(?:ory)?_kv|incremental|use_kv|decode$|continu|resume"
)
_TOKENS, _BATCH = r"(?:tokens|seq\w*|length|time|[tlsn])", r"(?:batch\w*|bsz|bs|b)"
TOKENS_FIRST = re.compile(rf"\b{_TOKENS}, ?{_BATCH}\b(?=, ?\w+|\))", re.IGNORECASE)
BATCH_FIRST = re.compile(rf"\b{_BATCH}, ?{_TOKENS}\b", re.IGNORECASE)
NOT_TOKENS = re.compile(
    r"freq|rope|rotary|cos|sin|len|cache|past|state_|bias|ind|idx|time|adj|edge|coord|emb$"
)
PLACES = re.compile(r"^(position_ids|input_pos|positions|pos_ids|cache_position)$")
