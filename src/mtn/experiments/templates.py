"""The pages that reports are written as: templates beside the modules that fill them."""

from jinja2 import Environment, PackageLoader, StrictUndefined

TEMPLATES = Environment(
    loader=PackageLoader("mtn.experiments", "."),
    autoescape=True,  # a class may be called <script>
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
