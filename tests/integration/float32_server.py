"""llama.cpp's server as we start it, but its cache is float32 too, without flash attention."""

from __future__ import annotations

from typing import Any

import xllamacpp

from hermes_rl.model.local_server import Options, main, parameters


def serve(options: Options) -> Any:
    params = parameters(options)
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    disabled = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.flash_attn_type = disabled
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main(serve)
