"""The class behind every explorer, the same on ipywidgets 7.7.1 and 8.

The picture is an `<img>` in an HTML widget: no Output capture, no pyplot, nothing from a CDN.
"""

import base64
import html
import textwrap

import ipywidgets as widgets

from ..figures.sheet import Sheet

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


class Impossible(ValueError):
    """A state that has no picture; its message says why and what would work."""


class Explorer:
    """Controls bound to one picture and one status line.

    `.controls`: name -> widget. `.state`: name -> value. `.picture`: a `Picture` of the state.
    `.status`: what it shows, in words. As a cell's last value it shows its widgets, and where
    no kernel runs (GitHub, nbviewer, nbconvert) the picture of the state it was shown in.

    name: the function that made it. controls: name -> widget; a Button has an action.
    render: state -> (picture, status). bounds: control -> function of the state that gives
    the slider's largest value. enabled: control -> function of the state that says whether it
    can be used. actions: button -> function of the state that returns further entries of the
    state, which hold until the next change.
    """

    raise_errors = False  # tests set it, so that no error hides in a widget's callback

    def __init__(self, name, controls, render, bounds=None, enabled=None, actions=None):
        self.name, self.controls, self.render = name, controls, render
        self._bounds, self._enabled, self._actions = bounds or {}, enabled or {}, actions or {}
        self._results = {}
        self._busy = False
        for control_name, control in controls.items():
            if isinstance(control, widgets.Button):
                control.on_click(lambda _, pressed=control_name: self.press(pressed))
            else:
                control.observe(self._changed, names="value")
        row = widgets.Box(
            list(controls.values()), layout=widgets.Layout(flex_flow="row wrap", width="100%")
        )
        self._status_line, self._picture_place = widgets.HTML(), widgets.HTML()
        self._box = widgets.VBox([row, self._picture_place, self._status_line])
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

    def press(self, name):
        """Do what the button `name` does; it is disabled meanwhile."""
        button = self.controls[name]
        button.disabled = True
        try:
            self._results = self._guarded(self._actions[name]) or {}
        finally:
            button.disabled = False
        if self._results:
            self._update()

    def _changed(self, _change):
        if not self._busy:
            self._results = {}
            self._update()

    def _update(self):
        self._busy = True  # a slider that is moved into its bounds reports no change of its own
        try:
            for name, bound in self._bounds.items():
                self.controls[name].max = bound(self.state)
            for name, rule in self._enabled.items():
                self.controls[name].disabled = not rule(self.state)
        finally:
            self._busy = False
        drawn = self._guarded(self.render)
        if drawn:
            self.picture, self.status = drawn
            self._show(_image(self.picture), self.status)

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
        self.picture, self.status = sentence(text), text
        place = f'<div style="max-width:500px;padding:1em 0;line-height:1.5">{html.escape(text)}'
        self._show(f"{place}</div>", "No picture for these settings.")

    def _show(self, place, status):
        self._picture_place.value = place
        self._status_line.value = (
            f'<div role="status" aria-live="polite" style="max-width:500px;line-height:1.5">'
            f"{html.escape(status)}</div>"
        )

    def __repr__(self):
        return f"{self.name}: run this cell to move {', '.join(self.controls)}."

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = self.picture._repr_mimebundle_()
        view = {"version_major": 2, "version_minor": 0, "model_id": self._box.model_id}
        return {**data, "text/plain": repr(self), WIDGET_VIEW: view}, metadata


def _image(picture):
    source = base64.b64encode(picture.png()).decode()
    width = round(picture.figure.get_figwidth() * 96)
    style = f"width:{width}px;max-width:100%;min-width:360px;height:auto;border-radius:4px"
    return (
        f'<div style="overflow-x:auto;max-width:100%"><img style="{style}" '
        f'alt="{html.escape(picture.description)}" src="data:image/png;base64,{source}"></div>'
    )


def sentence(text):
    """Draw a sentence in the place of a picture."""
    lines = textwrap.wrap(text, 62)
    sheet = Sheet(40 + 20 * len(lines))
    for i, line in enumerate(lines):
        sheet.text(20, 30 + 20 * i, line, 13)
    return sheet.picture(text)
