"""credsweeper finds likely secrets in lines of code, with probabilities."""

from __future__ import annotations

import io

from credsweeper import CredSweeper
from credsweeper.file_handler.files_provider import FilesProvider
from script_output import print_results

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
    credentials = sweeper.credential_manager.get_credentials()
    return sorted(
        [each.rule_name, each.line_data_list[0].value, float(each.ml_probability or 0)] for each in credentials
    )


if __name__ == "__main__":
    print_results(results)
