"""Routes for development and measurements; only with --enable-dev-endpoints.

They show settings and change the engine's state, so they need a key like every other route.
"""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import App
from dovetail_plugins.apis.admin.collective_rpc import collective_rpc
from dovetail_plugins.apis.admin.deploy import deploy, show_deployment
from dovetail_plugins.apis.admin.engines import (
    DrainRequest,
    EngineChoice,
    add,
    drain,
    remove,
    show_engines,
)
from dovetail_plugins.apis.admin.pause import (
    ContinueGenerationRequest,
    PauseGenerationRequest,
    continue_generation,
    is_paused,
    pause,
    pause_generation,
    resume,
)
from dovetail_plugins.apis.admin.prefix_cache import reset_prefix_cache
from dovetail_plugins.apis.admin.server_info import server_info
from dovetail_plugins.apis.admin.sleep import is_sleeping, sleep, wake_up
from dovetail_plugins.apis.admin.weight_groups import (
    DestroyGroupRequest,
    InitGroupRequest,
    UpdateFromDistributedRequest,
    destroy_group,
    get_world_size,
    init_group,
    update_from_distributed,
)
from dovetail_plugins.apis.admin.weights import (
    UpdateFromDiskRequest,
    UpdateWeightsRequest,
    WeightsHeader,
    update_from_disk,
    update_weights,
)

FLAG = "enable_dev_endpoints"


class AdminApi(Api):
    """Endpoints that change the engine and show its settings."""

    info = Info(summary="changes the engine's state and tells its settings")
    routes = (
        Route(method="POST", path="/reset_prefix_cache", endpoint=reset_prefix_cache, flag=FLAG),
        Route(method="GET", path="/server_info", endpoint=server_info, flag=FLAG),
        Route(method="POST", path="/sleep", endpoint=sleep, flag=FLAG),
        Route(method="POST", path="/wake_up", endpoint=wake_up, flag=FLAG),
        Route(method="POST", path="/collective_rpc", endpoint=collective_rpc, flag=FLAG),
        Route(method="GET", path="/is_sleeping", endpoint=is_sleeping, flag=FLAG),
        Route(method="POST", path="/pause", endpoint=pause, flag=FLAG),
        Route(method="POST", path="/resume", endpoint=resume, flag=FLAG),
        Route(method="GET", path="/is_paused", endpoint=is_paused, flag=FLAG),
        Route(method="POST", path="/pause_generation", endpoint=pause_generation, flag=FLAG,
              body=PauseGenerationRequest),
        Route(method="POST", path="/continue_generation", endpoint=continue_generation, flag=FLAG,
              body=ContinueGenerationRequest),
        Route(method="GET", path="/engines", endpoint=show_engines, flag=FLAG),
        Route(method="POST", path="/engines/drain", endpoint=drain, flag=FLAG, body=DrainRequest),
        Route(method="POST", path="/engines/remove", endpoint=remove, flag=FLAG,
              body=EngineChoice),
        Route(method="POST", path="/engines/add", endpoint=add, flag=FLAG, body=EngineChoice),
        Route(method="POST", path="/update_weights", endpoint=update_weights, flag=FLAG,
              body=UpdateWeightsRequest),
        Route(method="POST", path="/update_weights_from_disk", endpoint=update_from_disk, flag=FLAG,
              body=UpdateFromDiskRequest),
        Route(method="POST", path="/init_weights_update_group", endpoint=init_group, flag=FLAG,
              body=InitGroupRequest),
        Route(method="POST", path="/update_weights_from_distributed",
              endpoint=update_from_distributed, flag=FLAG, body=UpdateFromDistributedRequest),
        Route(method="POST", path="/destroy_weights_update_group", endpoint=destroy_group,
              flag=FLAG, body=DestroyGroupRequest),
        Route(method="POST", path="/deploy", endpoint=deploy, flag=FLAG),
        Route(method="GET", path="/deploy", endpoint=show_deployment, flag=FLAG),
        Route(method="GET", path="/get_world_size", endpoint=get_world_size, flag=FLAG),
    )  # fmt: skip

    def bound(self, app: Any, state: Any) -> None:
        """Show the version of the weights in answers."""
        server: App = app.state.server
        if server.frontend.enable_dev_endpoints:
            app.add_middleware(WeightsHeader, engine=server.engine)
