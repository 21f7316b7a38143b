"""The lectures' sentences, vectors and published numbers, each with its place. No computation.

"L6 12:28" is lecture 6 of the series "The Attention Family" at 12 minutes 28 seconds. Names
that begin with OUR hold numbers that the lectures do not give: they were chosen for this
course. Words are compared in lower case, so that "The" and "the" share a vector.
"""

# --- Lecture 6: query, key, value -----------------------------------------------------------

TWO_ITS = "The dog chased the ball, but it could not catch it"  # L6 10:55, L8 6:11
IT = (0.5, 0.5, 0.1)  # L6 10:55 to 12:28
DOG = (0.9, 0.1, 0.1)
BALL = (0.1, 0.9, 0.1)
IT_DOG = IT_BALL = 0.51  # the two dot products

KEY_DIAGONAL = (1.0, 2.0, 1.0)  # W_K, L6 13:22 to 17:27
DOG_KEY = (0.9, 0.2, 0.1)
BALL_KEY = (0.1, 1.8, 0.1)
IT_DOG_KEY, IT_BALL_KEY = 0.56, 0.96

CHASED = "the dog chased the ball"  # L6 24:25
SLIDE_SCORES = (2.89, 2.82, 3.42)  # raw scores of "ball" with tokens 1 to 3, L6 28:16
SLIDE_WEIGHTS = (0.17, 0.16, 0.25, 0.10, 0.31)  # after division by the root of 2, L6 29:02

DREAM = "Dream big and work for it"  # L6 40:03
DREAM_INPUTS = (  # six tokens of three numbers, from the lecture's notebook
    (0.72, 0.45, 0.31),
    (0.75, 0.20, 0.55),
    (0.30, 0.80, 0.40),
    (0.85, 0.35, 0.60),
    (0.55, 0.15, 0.75),
    (0.25, 0.20, 0.85),
)
DREAM_SEED = 123  # torch.rand(3, 2) three times, in the order W_Q, W_K, W_V
BIG_CONTEXT = (0.2274, 0.7362)  # the context vector of "big", L6 46:04
BIG_WEIGHTS = (0.1531, 0.1528, 0.1873, 0.1725, 0.1627, 0.1715)  # its row, measured

# The slide of L6 24:25 shows 5 x 3 embeddings and 3 x 2 matrices that are not in the sources.
# These are ours; it, dog and ball are the lecture's.
OUR_WORDS = {
    "the": (0.2, 0.3, 0.2),
    "dog": DOG,
    "chased": (0.4, 0.6, 0.9),
    "ball": BALL,
    "but": (0.1, 0.2, 0.4),
    "it": IT,
    "could": (0.3, 0.1, 0.6),
    "not": (0.2, 0.1, 0.8),
    "catch": (0.5, 0.4, 0.9),
}
OUR_W_QUERY = ((1.0, 0.5), (0.5, 1.0), (0.5, 0.5))
OUR_W_KEY = ((0.5, 1.0), (1.0, 0.5), (0.5, 1.0))
OUR_W_VALUE = ((1.0, 0.0), (0.0, 1.0), (0.5, 0.5))

# --- Lecture 8: heads -----------------------------------------------------------------------

BATCH, TOKENS, D_MODEL, NUM_HEADS, HEAD_DIM = 2, 6, 6, 2, 3  # L8 39:19, 52:03
GPT2_SMALL = {"d_model": 768, "num_heads": 12, "head_dim": 64}  # L8 18:16 to 20:42
GPT3 = {"d_model": 12288, "num_heads": 96, "head_dim": 128}
LOOP_HEADS = (2, 20, 200, 400, 4000)  # announced without 400, L8 21:56; 2, 400, 4000 at 50:39
LOOP_SECONDS = {2: 0.003, 4000: 0.63}  # in the lecturer's Colab notebook, L8 51:21

# Lecture 8's 6 x 6 inputs and its weights are not in the sources. These are ours.
OUR_INPUTS = (
    (0.3, 0.5, 0.6, 0.2, 0.3, 0.0),
    (0.1, 0.2, 0.3, 0.8, 0.3, 0.6),
    (0.0, 0.7, 0.7, 0.7, 0.6, 0.7),
    (0.9, 0.3, 0.6, 0.1, 0.7, 0.3),
    (0.0, 0.4, 0.8, 0.6, 0.7, 0.6),
    (0.1, 0.4, 0.1, 0.1, 0.6, 0.9),
)
OUR_HEADS_W_QUERY = (
    (
        (0.3, -0.6, -0.8),
        (0.1, -0.2, -0.7),
        (0.6, 0.7, -0.3),
        (0.9, -0.5, -0.7),
        (0.8, -0.8, 0.6),
        (-0.3, -0.5, 0.9),
    ),
    (
        (0.5, 0.9, 0.5),
        (0.0, 0.8, 0.2),
        (0.4, -0.5, -0.4),
        (-0.6, 0.8, 0.1),
        (0.2, 0.6, 0.7),
        (-0.3, 0.0, -0.5),
    ),
)
OUR_HEADS_W_KEY = (
    (
        (0.2, 0.7, 0.0),
        (0.7, -0.7, 0.7),
        (0.8, -0.2, 0.2),
        (-0.2, -0.9, 0.0),
        (0.1, -0.2, -0.1),
        (-0.8, 0.4, -0.1),
    ),
    (
        (0.3, 0.0, 0.4),
        (-0.4, 0.3, -0.6),
        (-0.4, -0.9, -0.3),
        (-0.4, 0.0, -0.6),
        (-0.9, 0.3, 0.1),
        (-0.4, 0.9, 0.4),
    ),
)
OUR_HEADS_W_VALUE = (
    (
        (-0.2, -0.5, 0.4),
        (0.9, 0.5, 0.4),
        (0.4, -0.7, 0.9),
        (-0.7, 0.0, -0.6),
        (-0.8, -0.7, -0.6),
        (0.7, 0.7, 0.2),
    ),
    (
        (-0.5, 0.7, 0.6),
        (-0.5, -0.7, -0.3),
        (-0.9, -0.5, 0.1),
        (0.3, 0.9, -0.6),
        (0.0, 0.2, 0.1),
        (0.2, -0.9, 0.6),
    ),
)
OUR_W_OUT = (
    (-0.3, -0.8, -0.8, 0.9, -0.4, -0.4),
    (0.1, 0.4, 0.5, -0.6, -0.7, -0.3),
    (-0.2, 0.6, 0.6, -0.5, 0.3, -0.6),
    (-0.6, 0.9, 0.5, -0.5, 0.5, 0.7),
    (-0.7, 0.6, 0.9, 0.3, 0.2, 0.5),
    (-0.2, -0.8, -0.3, -0.8, 0.5, -0.6),
)

# --- Word order -----------------------------------------------------------------------------

ALL_DOGS = "All dogs are animals"  # L8 1:10:15
ALL_ANIMALS = "All animals are dogs"
