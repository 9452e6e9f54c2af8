"""What the container images are made of, as far as no container engine is needed."""
import ast
import re
import sys
import tomllib
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import images

ROOT = Path(__file__).resolve().parent.parent
COMPOSE = (ROOT / "flower/compose.yaml").read_text()
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def constant(script, name):
    """A constant of a script that cannot be imported without Flower."""
    for node in ast.parse((ROOT / "scripts" / script).read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{script} has no {name}")


class Base(unittest.TestCase):
    def test_sources_are_those_of_apt(self):
        targets = [
            ("http://mirror.example/debian/", "bookworm", "Debian", KEYRING),
            ("http://mirror.example/debian/", "bookworm-updates", "Debian", KEYRING),
            ("http://mirror.example/debian-security/", "bookworm-security", "Debian", "$(SIGNED_BY)"),
            ("http://elsewhere.example/", "nodistro", "Elsewhere", KEYRING),
        ]
        suite, sources = images.debian_sources("\n".join("\t".join(target) for target in targets))
        self.assertEqual(suite, "bookworm")
        self.assertEqual(sources, [
            f"deb [signed-by={KEYRING}] http://mirror.example/debian/ bookworm main",
            f"deb [signed-by={KEYRING}] http://mirror.example/debian/ bookworm-updates main",
            "deb http://mirror.example/debian-security/ bookworm-security main",
        ])

    def test_a_system_without_debian_is_told_what_to_do(self):
        with self.assertRaisesRegex(images.ImagesError, "--base"):
            images.debian_sources("http://elsewhere.example/\tnoble\tUbuntu\t$(SIGNED_BY)")


class Fleet(unittest.TestCase):
    def test_the_experiment_is_that_of_make_fleet(self):
        nodes = images.SERVICES[1:]
        self.assertEqual(len(nodes), constant("fleet.py", "NODES"))
        values = {"rounds": constant("fleet.py", "ROUNDS"), "clients": len(nodes), "per_round": len(nodes), "per_node": 1}
        expected = tomllib.loads(constant("fleet.py", "EXPERIMENT").format(path="/tmp/server", **values))
        self.assertEqual(tomllib.loads((ROOT / "flower/container/experiment.toml").read_text()), expected)
        self.assertEqual(expected["rounds"], images.ROUNDS)

    def test_services_are_those_of_the_compose_file(self):
        services = re.findall(r"^  ([a-z0-9-]+):$", COMPOSE.partition("\nservices:\n")[2].partition("\nnetworks:")[0], re.MULTILINE)
        self.assertEqual(services, images.SERVICES)


if __name__ == "__main__":
    unittest.main()
