"""The models of the paper's two hyperparameter tables (appendix I, table 2; appendix J, table 3)."""

from excise.model.gpt import GPTConfig

TINYSTORIES = {
    "8m": GPTConfig(n_layers=6, d_model=128, d_mlp=512),
    "18m": GPTConfig(n_layers=6, d_model=256, d_mlp=1024),
    "34m": GPTConfig(n_layers=8, d_model=384, d_mlp=1536),
    "64m": GPTConfig(n_layers=12, d_model=512, d_mlp=2048),
}
WIKIPEDIA = {
    "34m": GPTConfig(context=1024, n_layers=8, d_model=384, d_mlp=1536),
    "64m": GPTConfig(context=1024, n_layers=12, d_model=512, d_mlp=2048),
    "125m": GPTConfig(context=1024, n_layers=12, d_model=768, d_mlp=3072),
    "254m": GPTConfig(context=1024, n_layers=16, d_model=1024, d_mlp=4096),
}
