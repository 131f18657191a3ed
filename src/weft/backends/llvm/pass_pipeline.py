"""The LLVM passes of weft's modules by name, as part of the keys of cached code; importing this does not load LLVM."""

PIPELINE = "always-inline,sroa,simplifycfg; O1; assembly: instcombine, O2"
