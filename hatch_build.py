"""Installation compiles the attention kernel if there is a C compiler, and goes on without one."""

from __future__ import annotations

import sysconfig
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = Path("src/esscher/engine/attention/compiled/build.py")


class CompileKernel(BuildHookInterface):
    """The libraries lie beside their source; a wheel that has them is for one platform."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before a wheel is packed, and before an editable installation."""
        if self.target_name != "wheel":
            return
        spec = spec_from_file_location("esscher_build", Path(self.root) / BUILD)
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        try:
            made = module.build()
        except RuntimeError as error:
            self.app.display_warning(f"the attention kernel is not compiled: {error}")
            return
        build_data["artifacts"] += [str(path.relative_to(self.root)) for path in made]
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
