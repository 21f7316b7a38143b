"""The class behind every explorer, the same on ipywidgets 7.7.1 and 8.

The picture is an `<img>` in an HTML widget: no Output capture, no pyplot, nothing from a CDN.
"""

import asyncio
import base64
import html
import textwrap
import time

import ipywidgets as widgets

from ..figures.sheet import Sheet

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PAUSE, LONGEST = 0.12, 1.0  # seconds: a change that follows sooner waits, but not for ever


class Impossible(ValueError):
    """A state that has no picture; its message says why and what would work."""


class Explorer:
    """Controls bound to one picture, a status line, and one thing to try.

    `.controls`: name -> widget. `.state`: name -> value. `.picture`: a `Drawing` of the state.
    `.status`: what it shows, in words. `.task`: what to try next. As a cell's last value it
    shows its widgets, and where no kernel runs (GitHub, nbviewer, nbconvert) the picture of the
    state it was shown in.

    name: the function that made it. controls: name -> widget; a Button has an action.
    render: state -> (picture, status). tasks: (sentence, function of the state that says whether
    it was done), one after the other; the last one is never done. bounds: control -> function of
    the state that gives the slider's largest value; those in `whole` follow it up as well.
    enabled: control -> function of the state that says whether it can be used. actions: button
    -> function of the state that returns further entries of the state, which hold until the
    next change.
    """

    raise_errors = False  # tests set it, so that no error hides in a widget's callback

    def __init__(
        self, name, controls, render, tasks=(), bounds=None, whole=(), enabled=None, actions=None
    ):
        self.name, self.controls, self.render = name, controls, render
        self._tasks, self._bounds, self._whole = list(tasks), bounds or {}, whole
        self._enabled, self._actions = enabled or {}, actions or {}
        self._results, self._busy, self._waiting, self._drawn_at = {}, False, None, 0.0
        for control_name, control in controls.items():
            if isinstance(control, widgets.Button):
                control.on_click(lambda _, pressed=control_name: self.press(pressed))
            else:
                control.observe(self._changed, names="value")
        row = widgets.Box(
            list(controls.values()), layout=widgets.Layout(flex_flow="row wrap", width="100%")
        )
        self._lines = [widgets.HTML() for _ in range(3)]  # the picture, the task, the status
        self._box = widgets.VBox([row, *self._lines])
        self._box.add_class("explorer")
        row.add_class("explorer-controls")
        self._update()

    @property
    def state(self):
        """The values of all controls by name, and the results of buttons."""
        values = {
            name: control.value
            for name, control in self.controls.items()
            if not isinstance(control, widgets.Button)
        }
        return {**values, **self._results}

    @property
    def picture(self):
        self._catch_up()
        return self._picture

    @property
    def status(self):
        self._catch_up()
        return self._status

    @property
    def task(self):
        self._catch_up()
        return self._tasks[0][0] if self._tasks else ""

    def press(self, name):
        """Do what the button `name` does; it is disabled meanwhile."""
        self._catch_up()
        button = self.controls[name]
        button.disabled = True
        try:
            self._results = self._guarded(self._actions[name]) or {}
        finally:
            button.disabled = False
        if self._results:
            self._update()

    def _changed(self, _change):
        """Draw at once; of changes that come faster than anyone looks, draw the last."""
        if self._busy:
            return
        self._results = {}
        loop, now = _running_loop(), time.monotonic()
        if self._waiting:
            self._waiting.cancel()
        elif loop is None or now - self._drawn_at > PAUSE:
            self._update()
            return
        pause = min(PAUSE, max(0.0, self._drawn_at + LONGEST - now))
        self._waiting = loop.call_later(pause, self._update)

    def _catch_up(self):
        if self._waiting:
            self._waiting.cancel()
            self._update()

    def _update(self):
        self._waiting = None
        self._busy = True  # a slider that is moved into its bounds reports no change of its own
        try:
            self._bound()
            for name, rule in self._enabled.items():
                self.controls[name].disabled = not rule(self.state)
        finally:
            self._busy = False
        drawn = self._guarded(self.render)
        if drawn:
            self._picture, self._status = drawn
            while self._tasks[1:] and self._tasks[0][1](self.state):
                self._tasks.pop(0)
            self._show(_image(self._picture), self._status)
        self._drawn_at = time.monotonic()

    def _bound(self):
        for name, bound in self._bounds.items():
            slider, largest = self.controls[name], max(0, bound(self.state))
            follows = name in self._whole and slider.value == slider.max
            slider.max = largest
            slider.value = largest if follows else slider.value

    def _guarded(self, function):
        """Return function(state), or show the sentence that takes the picture's place."""
        try:
            return function(self.state)
        except Impossible as reason:
            self._say(str(reason))
        except Exception as error:
            self._say(f"An error inside {self.name}: {error!r}, at {self.state}.")
            if self.raise_errors:
                raise
        return None

    def _say(self, text):
        self._picture, self._status = sentence(text), text
        place = f'<div style="max-width:500px;padding:1em 0;line-height:1.5">{html.escape(text)}'
        self._show(f"{place}</div>", "No picture for these settings.")

    def _show(self, place, status):
        style = "max-width:500px;line-height:1.5"
        task = self._tasks[0][0] if self._tasks else ""
        task, status = html.escape(task), html.escape(status)
        self._lines[0].value = place
        self._lines[1].value = f'<div style="{style};font-weight:bold">{task}</div>'
        self._lines[
            2
        ].value = f'<div role="status" aria-live="polite" style="{style}">{status}</div>'

    def __repr__(self):
        moves = f"run this cell to move {', '.join(self.controls)}."
        return f"{self.name}: {moves if self.controls else self.status}"

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = self.picture._repr_mimebundle_()
        view = {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}
        return {**data, "text/plain": repr(self), WIDGET_VIEW: view}, metadata


def _running_loop():
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None  # no notebook: nothing could come back later


def _image(picture):
    source = base64.b64encode(picture.svg().encode()).decode()
    style = f"width:{picture.width}px;max-width:100%;height:auto;border-radius:4px"
    return (
        f'<div><img style="{style}" '
        f'alt="{html.escape(picture.description)}" src="data:image/svg+xml;base64,{source}"></div>'
    )


def sentence(text):
    """Draw a sentence in the place of a picture."""
    sheet, lines = Sheet(), textwrap.wrap(text, 62)
    for i, line in enumerate(lines):
        sheet.text(20, 30 + 20 * i, line, 13)
    return sheet.picture(40 + 20 * len(lines), text)
