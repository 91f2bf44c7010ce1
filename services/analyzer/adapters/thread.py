"""A dedicated thread for a library that blocks."""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class BlockingThread:
    """Runs blocking calls one after the other. A daemon: a call that never returns cannot hold the process back."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    async def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """The function's result, or its exception."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((lambda: function(*arguments), future))
        return await future

    def _run(self) -> None:
        while True:
            function, future = self._calls.get()
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                self._settle(future, error=error)
            else:
                self._settle(future, result=result)

    @staticmethod
    def _settle(future: asyncio.Future[Any], result: Any = None, error: BaseException | None = None) -> None:
        def settle() -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        loop = future.get_loop()
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle)
