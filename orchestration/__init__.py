"""Start, supervise and stop the services of one deployment, and list their endpoints for routers.

`deployment` holds the deployment file and the plan of replicas; `control` the controller's logic, without
Ray; `ray` everything that calls Ray; `local` a whole deployment on one machine (`flyserve up`).
"""
