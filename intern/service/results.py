"""What `Intern` takes and gives, where the type is that of the package which does the work."""

from intern.facts.extracting import Came
from intern.learning.attempts import Tally
from intern.learning.forgetting import Forget, Forgot
from intern.learning.regenerating import Progress, Regenerated
from intern.learning.review import Review
from intern.service.known import FactFilter, Link, Retirement
from intern.sources.discovery import Discovered, Feed, Question
from intern.sources.refresh import Refreshed

__all__ = [
    "Came",
    "Discovered",
    "FactFilter",
    "Feed",
    "Forget",
    "Forgot",
    "Link",
    "Progress",
    "Question",
    "Refreshed",
    "Regenerated",
    "Retirement",
    "Review",
    "Tally",
]
