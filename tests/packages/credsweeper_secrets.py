"""credsweeper finds what looks like secrets in lines of code, and says how likely each is one."""

from __future__ import annotations

import io

from credsweeper import CredSweeper
from credsweeper.file_handler.files_provider import FilesProvider
from telling import tell

LINES = """
password = "Tr0ub4dor&3xyz"
db_password = "example"
api_key = "dGhpcyBpcyBub3QgYSBrZXkgYnV0IGl0IGxvb2tz"
secret: "p9Zk3mQw8Lr2Xv7T"
token = os.environ["TOKEN"]
user_pass = get_password()
passwd='5ecret-Pa55-w0rd'
"""


def results() -> list[object]:
    sweeper = CredSweeper(ml_threshold=0.01)
    sweeper.run(FilesProvider([("settings.py", io.BytesIO(LINES.encode()))]))
    found = sweeper.credential_manager.get_credentials()
    return sorted([each.rule_name, each.line_data_list[0].value, float(each.ml_probability or 0)] for each in found)


if __name__ == "__main__":
    tell(results)
