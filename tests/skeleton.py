"""What a browser would build from a page, text left out."""

from html.parser import HTMLParser


class Skeleton(HTMLParser):
    """events: every tag with the names of its attributes and with its class, in order. text: all text."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.events, self.attributes, self.text = [], [], ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.events.append((tag, tuple(name for name, _ in attributes), dict(attributes).get("class")))
        self.attributes += [(tag, name, value) for name, value in attributes]

    def handle_endtag(self, tag):
        self.events.append((f"/{tag}",))

    def handle_comment(self, data):
        self.events.append(("comment", data))

    def handle_decl(self, data):
        self.events.append(("declaration", data))

    def handle_pi(self, data):
        self.events.append(("instruction", data))

    def unknown_decl(self, data):
        self.events.append(("unknown", data))

    def handle_data(self, data):
        self.text += data
